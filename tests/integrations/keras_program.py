"""A Keras model on torch; its second argument is put into one sample of the fifth batch."""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np

keras.utils.set_random_seed(0)
optimizer = {"adam": keras.optimizers.Adam, "sgd": lambda rate: keras.optimizers.SGD(rate, momentum=0.9)}[sys.argv[1]]
numbers = np.random.default_rng(0)
x, y = numbers.standard_normal((64, 4)).astype("float32"), numbers.integers(0, 2, 64)
x[37, 2] = float(sys.argv[2])
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
model.compile(optimizer(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
print(history.history["loss"], int(model.optimizer.iterations))
print(sum(float(abs(weight).sum()) for weight in model.get_weights()))
