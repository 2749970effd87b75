"""Working state: todos, context, open loops, intentions and constraints as a typed view of a thread."""
