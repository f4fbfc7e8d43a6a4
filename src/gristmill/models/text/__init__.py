"""Text models: tokenisers, encoders, what is made of their output, static embeddings and classifiers that are trained
here."""
