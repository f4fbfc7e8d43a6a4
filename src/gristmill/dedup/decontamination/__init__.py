"""Decontamination: documents that contain items of evaluation sets are dropped, cut or marked."""
