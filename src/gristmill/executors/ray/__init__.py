"""Actors of a Ray cluster: the actor-pool executor, the control actor, locality, reuse of actors, and RayClient."""
