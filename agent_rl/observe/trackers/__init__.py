"""Further places for a run's figures: TensorBoard, Weights & Biases, or your own tracker."""
