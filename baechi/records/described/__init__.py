"""What people write for devices, links and limits, read as records.

In:    text such as `"1xRTX-4090,2xRTX-3090"`, `"pcie"`, `{"cuda:0": "10GiB"}`.
Out:   devices, a link, the same devices with other memory.
Start: `devices`.
"""
