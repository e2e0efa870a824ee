"""The model file: metadata, tensors, quantisation codecs, writer."""
