"""What a caption alone tells of its series: forecast and reconstruction out of a frozen encoder."""
