reverie-train env=gymnasium env.id=tiny_env:Tiny-v0 env.kwargs.size=8
