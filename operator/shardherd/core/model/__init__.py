"""The nouns of the protocol, its errors and reasons. No rules: whatever decides something is in another folder."""
