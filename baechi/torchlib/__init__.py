"""What baechi needs of torch's inside; it knows of no device, plan or model of ours.

In:    operators, modules and tensors of torch.
Out:   facts about them, and changes of them that can be taken back.
Start: `operators` (what an operator does).
"""
