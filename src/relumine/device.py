"""Where networks are trained and fitted: on a GPU, if this process may use one."""

import os


def device() -> str:
    """ "cuda" where there is one and RELUMINE_DEVICE does not say cpu; else "cpu".

    A Ray cluster gives each job the GPU that it may use (CUDA_VISIBLE_DEVICES). Rounding differs from that of a CPU, so
    rows of a study name the device.
    """
    import torch

    return "cuda" if os.environ.get("RELUMINE_DEVICE", "") != "cpu" and torch.cuda.is_available() else "cpu"
