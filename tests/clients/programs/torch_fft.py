# SPDX-License-Identifier: MIT OR Apache-2.0
"""cuFFT: real and complex transforms, of lengths that are powers of two, prime, and neither."""

import client
import torch


def body():
    for length in (256, 1000, 1021):
        x = torch.randn(16, length).cuda()
        spectrum = torch.fft.rfft(x)
        assert spectrum.shape == (16, length // 2 + 1) and spectrum.dtype == torch.complex64
        back = torch.fft.irfft(spectrum, n=length)
        assert back.shape == x.shape
        whole = torch.fft.fft(x)
        kept = [torch.view_as_real(spectrum), back, torch.view_as_real(whole)]
        client.kept(f"length {length}", kept)
    image = torch.fft.fft2(torch.randn(4, 64, 96).cuda())
    assert image.shape == (4, 64, 96)
    window = torch.hann_window(400).cuda()
    sound = torch.stft(torch.randn(2, 4000).cuda(), 400, 160, window=window, return_complex=True)
    assert sound.shape == (2, 201, 26)
    client.kept("image and sound", [torch.view_as_real(image), torch.view_as_real(sound)])
    torch.cuda.synchronize()


if __name__ == "__main__":
    client.main(body)
