reverie-train experiment=dreamer_cartpole -m seed=1,2,3 hydra.sweep.dir=three
reverie-plot three out=report.html
