"""In the place of flash_attn, which needs CUDA: names that OpenRLHF imports and a CPU never calls."""
