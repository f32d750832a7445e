# SPDX-License-Identifier: MIT OR Apache-2.0
"""JAX: graphs built node by node and rewritten before each launch, host functions, explicit events;
with the tuner, which spins on a host word in a kernel, unless XLA_FLAGS turns it off."""

import os

import client

# JAX looks for one of these nodes before it asks the driver. A machine with a GPU has one; on a
# machine with a simulated GPU this is the answer.
NODES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")
exists = os.path.exists
if not any(exists(node) for node in NODES):
    os.path.exists = lambda path: path == NODES[0] or exists(path)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402


def body():
    assert jax.devices()[0].platform == "gpu", jax.devices()

    def loss(weights, x, y):
        hidden = jnp.tanh(x @ weights[0])
        return jnp.mean((hidden @ weights[1] - y) ** 2)

    @jax.jit
    def step(weights, x, y):
        return [w - 0.01 * g for w, g in zip(weights, jax.grad(loss)(weights, x, y))]

    weights = [jnp.ones((32, 64)), jnp.ones((64, 8))]
    x, y = jnp.ones((16, 32)), jnp.ones((16, 8))
    for _ in range(10):
        weights = step(weights, x, y)
    jax.block_until_ready(weights)
    client.kept("weights", weights)
    assert weights[0].shape == (32, 64)

    total, _ = jax.jit(lambda a: jax.lax.scan(lambda c, _: (c * 0.5 + 1.0, c), a, None, length=5))(jnp.ones(128))
    jax.block_until_ready(total)
    client.kept("scan", total)
    image = jax.jit(lambda i, k: jax.lax.conv(i, k, (1, 1), "SAME"))(jnp.ones((1, 3, 16, 16)), jnp.ones((4, 3, 3, 3)))
    assert jax.block_until_ready(image).shape == (1, 4, 16, 16)


client.main(body)
