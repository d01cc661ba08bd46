"""The languages of HTTP in which agents ask for turns: bodies in and out, without sockets."""
