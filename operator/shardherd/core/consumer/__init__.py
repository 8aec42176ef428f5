"""The consumer's side of the protocol: what one run holds, has read, has made durable, and may release; when it saves, what it
tries again, and when it must stop by itself.

Must not import what decides on the other side: it knows grants and replies, and nothing of how they came about.
"""
