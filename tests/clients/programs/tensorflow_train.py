# SPDX-License-Identifier: MIT OR Apache-2.0
"""TensorFlow: training steps of a small network, as a graph of its own executor."""

import client
import numpy as np
import tensorflow as tf


def body():
    assert tf.config.list_physical_devices("GPU")
    tf.keras.utils.set_random_seed(1)
    layers = tf.keras.layers
    stages = [layers.Conv2D(8, 3, activation="relu"), layers.GlobalAveragePooling2D(), layers.Dense(4)]
    model = tf.keras.Sequential([layers.Input((16, 16, 3)), *stages])
    optimizer = tf.keras.optimizers.SGD(0.1)
    difference = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    x, y = tf.ones((8, 16, 16, 3)), tf.zeros(8, tf.int64)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = difference(y, model(x, training=True))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss

    for _ in range(5):
        loss = step().numpy()
    assert loss.dtype == np.float32
    client.kept("weights", model.trainable_variables)


client.main(body)
