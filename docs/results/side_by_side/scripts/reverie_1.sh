git clone <reverie> reverie
cd reverie
make train EXPERIMENT=dreamer_cartpole
