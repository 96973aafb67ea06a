"""For target_compatible_with: what is built with --config=arm64 alone, or only without it."""

ARM64_ONLY = select({
    "//third_party/arm64": [],
    "//conditions:default": ["//third_party/arm64:unavailable"],
})

NOT_ARM64 = select({
    "//third_party/arm64": ["//third_party/arm64:unavailable"],
    "//conditions:default": [],
})
