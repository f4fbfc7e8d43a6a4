"""Write in two steps: each batch becomes a fragment, and a commit joins the fragments of a source into files."""
