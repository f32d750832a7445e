# SPDX-License-Identifier: MIT OR Apache-2.0
"""CatBoost: trees on the GPU. It brings the runtime of CUDA 11, which loads a program's kernels
through a private table of the driver.
"""

import client
import numpy as np
from catboost import CatBoostClassifier


def body():
    x = np.random.default_rng(3).normal(size=(2000, 8)).astype(np.float32)
    model = CatBoostClassifier(
        iterations=5, depth=3, learning_rate=0.5, task_type="GPU", devices="0", verbose=False, allow_writing_files=False
    )
    model.fit(x, (x[:, 0] > 0).astype(int))
    # Its prediction is made on the host.
    client.kept("predicted", model.predict(x))
    return {"trees": model.tree_count_}


client.main(body)
