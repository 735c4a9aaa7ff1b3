"""Rows for `ludwig_llm.yaml`: FOLDER of materials."""

import csv
import json
import sys
from pathlib import Path

material = Path(sys.argv[1])
place = material / "ludwig"
place.mkdir(exist_ok=True)
rows = [json.loads(line) for line in (material / "alpaca" / "train.jsonl").read_text().splitlines()] * 3
with (place / "rows.csv").open("w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["question", "length", "answer"])
    writer.writerows([row["instruction"], len(row["output"]), row["output"].split()[0]] for row in rows)
