"""Stages that run models of text: published classifiers, the tokens they share, and perplexity."""
