"""The contract of a method: its two tiers, the storage it may use, what it declares and needs, and its knobs."""
