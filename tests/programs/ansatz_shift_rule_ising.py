"""Variational ground state of a transverse-field Ising ring, gradients by the parameter-shift rule."""
import math

import torch
from torch import nn

QUBITS, LAYERS, FIELD = 4, 3, 0.9


def pauli(name):
    table = {"I": [[1, 0], [0, 1]], "X": [[0, 1], [1, 0]], "Z": [[1, 0], [0, -1]]}
    full = torch.ones(1, 1, dtype=torch.complex64)
    for letter in name:
        full = torch.kron(full, torch.tensor(table[letter], dtype=torch.complex64))
    return full


def hamiltonian():
    total = torch.zeros(2 ** QUBITS, 2 ** QUBITS, dtype=torch.complex64)
    for q in range(QUBITS):
        bond = ["I"] * QUBITS
        bond[q] = bond[(q + 1) % QUBITS] = "Z"
        total -= pauli(bond)
        field = ["I"] * QUBITS
        field[q] = "X"
        total -= FIELD * pauli(field)
    return total


class Ansatz(nn.Module):
    def __init__(self):
        super().__init__()
        self.angle = nn.Parameter(0.2 * torch.randn(LAYERS, QUBITS, 2))
        signs = torch.ones(2 ** QUBITS)
        for basis in range(2 ** QUBITS):
            bits = [(basis >> (QUBITS - 1 - q)) & 1 for q in range(QUBITS)]
            signs[basis] = (-1) ** sum(bits[q] * bits[(q + 1) % QUBITS] for q in range(QUBITS))
        self.register_buffer("entangle", signs)
        self.register_buffer("energy_operator", hamiltonian())

    def rotate(self, state, q, y, z):
        c, s = torch.cos(y / 2), torch.sin(y / 2)
        left = state.reshape(2 ** q, 2, -1)
        zero, one = left[:, 0], left[:, 1]
        phase = torch.polar(torch.ones_like(z), z / 2)
        out = torch.stack([(c * zero - s * one) * phase.conj(), (s * zero + c * one) * phase], 1)
        return out.reshape(-1)

    def forward(self, flat):
        angle = flat.reshape(LAYERS, QUBITS, 2)
        state = torch.zeros(2 ** QUBITS, dtype=torch.complex64)
        state = state + torch.eye(2 ** QUBITS, dtype=torch.complex64)[0]
        for layer in range(LAYERS):
            for q in range(QUBITS):
                state = self.rotate(state, q, angle[layer, q, 0], angle[layer, q, 1])
            state = state * self.entangle
        return (state.conj() @ (self.energy_operator @ state)).real


@torch.no_grad()
def optimise(iterations=32):
    torch.manual_seed(14)
    circuit = Ansatz()
    exact = torch.linalg.eigvalsh(circuit.energy_operator)[0].item()
    print(f"exact ground energy {exact:.5f}")
    n = circuit.angle.numel()
    shifts = torch.cat([torch.eye(n), -torch.eye(n)]) * math.pi / 2
    adam = torch.optim.Adam(circuit.parameters(), lr=0.12)
    run_all = torch.vmap(circuit)
    for it in range(1, iterations + 1):
        flat = circuit.angle.flatten()
        energies = run_all(torch.cat([flat[None], flat + shifts]))
        plus, minus = energies[1:n + 1], energies[n + 1:]
        circuit.angle.grad = (0.5 * (plus - minus)).reshape(circuit.angle.shape)
        adam.step()
        print(f"{it:2d}  energy {energies[0].item():.5f}  above ground {energies[0].item() - exact:.5f}")
    return circuit


if __name__ == "__main__":
    final = optimise()
    print("squared angles", float(final.angle.detach().square().sum()))
