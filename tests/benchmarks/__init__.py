"""Speed, as ratios against a peer that does the same work in the same process."""
