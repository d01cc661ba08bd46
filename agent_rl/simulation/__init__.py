"""The fast simulator of scheduling policies: engines, tools and learner as models. No links, no actors, no clock."""
