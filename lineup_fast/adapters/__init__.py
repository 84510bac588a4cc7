"""Fields of training stacks mapped onto ``RewardClient``; each module is imported by its host only.

What a failure means, retries and deadlines are the client's. docs/embed.md has an example of each.
"""
