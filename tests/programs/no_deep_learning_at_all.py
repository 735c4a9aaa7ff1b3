import csv
import io
import json
import statistics

rows = list(csv.DictReader(io.StringIO("name,score\na,1.5\nb,nan\nc,4.25\n")))
scores = [float(r["score"]) for r in rows]
print(json.dumps({"n": len(rows), "mean": statistics.fmean(s for s in scores if s == s)}))
