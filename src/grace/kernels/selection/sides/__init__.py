"""The largest positive and the largest negative numbers of rows, selected side by side, in one list for each row."""
