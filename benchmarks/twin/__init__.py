"""The twin: the production actors of a run in virtual time, with modelled engines, tools and learner."""
