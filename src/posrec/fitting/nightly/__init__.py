"""The night: train on the newest log, judge the new model, and serve it if it holds."""
