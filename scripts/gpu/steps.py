"""Runs steps of the models of scripts/workloads on order, so that two such processes, one of them under weft, can be measured in turn.

Orders on stdin, one line of JSON as answer to each on stdout:

    load MODEL infer|train     makes the model anew, drops the one before           {"ok": true}
    run SECONDS                steps for so long, at least one                       {"ms": [...]}
    quit

An order that fails is answered {"error": why}, and the process goes on.
"""

import gc
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workloads"))


def main():
    # What libraries print to stdout must not be taken for an answer.
    answers = sys.stdout
    sys.stdout = sys.stderr

    def answer(value):
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        import torch
        from zoo import MODELS

        torch.set_num_threads(1)
        torch.zeros(1, device="cuda")
    except Exception as error:  # noqa: BLE001
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    answer({"ok": True})
    step = task = None
    for line in sys.stdin:
        words = line.split()
        try:
            if words[0] == "load":
                step = task = None
                gc.collect()
                torch.cuda.empty_cache()
                torch.manual_seed(0)
                task = MODELS[words[1]](words[2], None)
                step = task.infer if words[2] == "infer" else task.train
                for _ in range(3):
                    step()
                torch.cuda.synchronize()
                answer({"ok": True})
            elif words[0] == "run":
                end, times = time.monotonic() + float(words[1]), []
                while not times or time.monotonic() < end:
                    begin = time.perf_counter()
                    step()
                    times.append((time.perf_counter() - begin) * 1e3)
                torch.cuda.synchronize()
                answer({"ms": times})
            else:
                break
        except Exception as error:  # noqa: BLE001
            answer({"error": f"{type(error).__name__}: {error}"})


main()
