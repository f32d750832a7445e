# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hugging Face diffusers: steps of a small U-Net; random numbers, nothing is fetched."""

import client
import torch
from diffusers import DDIMScheduler, UNet2DModel


def body():
    torch.manual_seed(2)
    net = UNet2DModel(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    net = net.cuda().eval()
    scheduler = DDIMScheduler()
    scheduler.set_timesteps(5)
    image = torch.randn(1, 3, 32, 32).cuda()
    with torch.inference_mode():
        for when in scheduler.timesteps:
            image = scheduler.step(net(image, when).sample, when, image).prev_sample
    torch.cuda.synchronize()
    client.kept("image", image)
    assert image.shape == (1, 3, 32, 32)


client.main(body)
