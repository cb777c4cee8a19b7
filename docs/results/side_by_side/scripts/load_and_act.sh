cd <side>
for round in 1 2 3 4 5; do
  for project in reverie sheeprl sb3 cleanrl; do
    echo "== round $round: ${project}_3.py"
    ( cd $project; . .venv/bin/activate; PYTHONPATH=.; [ $project = cleanrl ] && export PYTHONPATH; time python ${project}_3.py )
  done
done
