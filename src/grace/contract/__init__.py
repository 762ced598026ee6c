"""What a method is: its two tiers, what it is lent, what it claims and needs, and its knobs."""
