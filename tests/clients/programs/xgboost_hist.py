# SPDX-License-Identifier: MIT OR Apache-2.0
"""XGBoost: trees from histograms on the GPU, and their prediction."""

import client
import numpy as np
import xgboost


def body():
    x = np.random.default_rng(3).normal(size=(2000, 8)).astype(np.float32)
    data = xgboost.QuantileDMatrix(x, x[:, 0], max_bin=32)
    # Other objectives begin with a check of the labels, which a kernel makes.
    options = {"device": "cuda", "tree_method": "hist", "max_depth": 3, "max_bin": 32}
    options |= {"objective": "reg:pseudohubererror", "base_score": 0.5}
    model = xgboost.train(options, data, num_boost_round=10)
    predicted = model.predict(data)
    assert predicted.shape == (2000,)
    client.kept("predicted", predicted)
    return {"trees": model.num_boosted_rounds()}


client.main(body)
