"""Where a run's figures go beside its own files: TensorBoard, Weights & Biases, or a tracker of your own."""
