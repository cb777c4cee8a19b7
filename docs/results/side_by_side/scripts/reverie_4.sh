reverie-train resume=killed
