"""Writes train.csv: short questions to a village library and its answers, made up from a small grammar; always the same."""

import csv
import random
from pathlib import Path

HERE = Path(__file__).parent
THINGS = ["novel", "atlas", "cookbook", "songbook", "dictionary", "comic", "map", "magazine", "diary", "guide"]
PLACES = ["by the window", "next to the stairs", "under the clock", "behind the desk", "in the cellar", "near the door"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
NAMES = ["Ada", "Ben", "Carla", "Dino", "Emma", "Farid", "Greta", "Hugo"]
COLOURS = ["red", "green", "blue", "yellow", "grey", "brown"]


def facts(chance: random.Random) -> dict[str, str]:
    return {
        "thing": chance.choice(THINGS), "place": chance.choice(PLACES), "day": chance.choice(DAYS),
        "name": chance.choice(NAMES), "colour": chance.choice(COLOURS), "weeks": str(chance.randint(2, 6)),
    }  # fmt: skip


PAIRS = [
    ("Where is the {thing}?", "The {thing} is {place}."),
    ("When may I bring the {colour} {thing} back? I took it home on {day}.",
     "You may keep the {colour} {thing} for {weeks} weeks, then bring it back on a {day}."),
    ("Who has the {thing}?", "{name} has it."),
    ("{name} asked for a {colour} {thing} last {day}, but it was not on the shelf {place}. Is it there again?",
     "Yes, the {colour} {thing} came back. It is on the shelf {place}, and it is kept for {name}."),
    ("Open on {day}?", "Yes, on {day} too."),
    ("Can {name} and I take a {thing} and a map for {weeks} weeks, if we bring both of them back on the same {day}?",
     "Of course. Take the {thing} and the map, and bring them back on {day}."),
]  # fmt: skip

SENTENCES = [answer for _, answer in PAIRS] + [
    "On {day} {name} put the {colour} {thing} {place}.",
    "The library is open on {day}, and {name} is at the desk.",
    "{name} may keep a {thing} for {weeks} weeks.",
    "Is the {colour} {thing} {place}? No, {name} has it.",
    "A {colour} {thing} was found {place} last {day}.",
]


def pairs(rows: int, seed: int) -> list[tuple[str, str]]:
    chance = random.Random(seed)
    out = []
    for _ in range(rows):
        question, answer = chance.choice(PAIRS)
        words = facts(chance)
        out.append((question.format(**words), answer.format(**words)))
    return out


def sentences(count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [chance.choice(SENTENCES).format(**facts(chance)) for _ in range(count)]


if __name__ == "__main__":
    with (HERE / "train.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["instruction", "output"])
        table.writerows(pairs(240, seed=7))
