"""Actors of a Ray cluster: the actor-pool executor, the control actor, locality, reuse of actors, the cluster and the client that starts one."""
