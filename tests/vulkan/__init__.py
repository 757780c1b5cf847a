"""Tests of vkml.vulkan, over the software drivers."""
