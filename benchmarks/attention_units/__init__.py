"""Attention on matrix units, fp16 in and out, stand-alone: nothing of it is in vkml yet."""
