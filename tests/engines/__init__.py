"""A scripted agent on real engines: what it says and does is drawn anew each time, so that nothing can stand
twice."""
