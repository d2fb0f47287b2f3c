"""Bytes of a checkpoint flipped or cut: the query refuses to start, or its result is still correct."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.analyze.pipe import Pipe, busiest, fix

pytestmark = [pytest.mark.soak, pytest.mark.spark]
TRIALS = int(os.environ.get("TRIALS", "120"))


def damage(file: Path, chance: random.Random) -> str:
    """Flip one bit of the file, or cut it; returns a description."""
    data = bytearray(file.read_bytes())
    place = chance.randrange(len(data))
    if chance.random() < 0.3:
        file.write_bytes(data[:place])
        return f"{file.name} cut to {place} of {len(data)} bytes"
    data[place] ^= 1 << chance.randrange(8)
    file.write_bytes(data)
    return f"{file.name} flipped at {place} of {len(data)}"


def test_a_damaged_checkpoint_is_refused_or_harmless(spark: SparkSession, tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", random.randrange(10**6)))
    chance = random.Random(seed)
    original = tmp_path / "original"
    pipe = Pipe(spark, original, busiest)
    for number in range(3):
        pipe.append(number, fix(10 * number), fix(10 * number + 1, "v2"))
        pipe.run()
        pipe.restart()
    pipe.close()
    files = sorted(file for file in (original / "checkpoint").rglob("*") if file.is_file() and file.stat().st_size)
    refused = 0
    for trial in range(TRIALS):
        root = tmp_path / "trial"
        shutil.copytree(original, root)
        done = damage(root / chance.choice(files).relative_to(original), chance)
        pipe = Pipe(spark, root, busiest)
        pipe.append(3, fix(100), fix(101, "v3"))
        try:
            pipe.run(clean=chance.random() < 0.5)
        except Exception:
            refused += 1
        else:
            assert pipe.counts() == {"v1": 4, "v2": 3, "v3": 1}, f"seed {seed}, trial {trial}: {done}"
        finally:
            pipe.query.stop()
            pipe.close()
        shutil.rmtree(root)
    print(f"seed {seed}: {TRIALS} damages over {len(files)} files, {refused} refused, {TRIALS - refused} harmless")
