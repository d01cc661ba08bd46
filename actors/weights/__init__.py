"""How weights get from the learner to the engines: published, fetched, transferred."""
