"""What is tried with a model: plain placements, pipelines, split layers, modules that run again."""
