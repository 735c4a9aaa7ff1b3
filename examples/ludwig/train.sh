#!/bin/sh
ludwig train --config model.yaml --dataset train.csv "$@"
