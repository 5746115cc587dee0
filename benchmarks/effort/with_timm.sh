# From a folder to a tested model with the scripts of timm's repository, which pip does not install.
# train.py does not split a folder: one image in five of each class is linked to validation/.
for name in $(ls photos); do
    mkdir -p split/train/$name split/validation/$name
    for file in photos/$name/*; do
        [ $((++count % 5)) = 0 ] && part=validation || part=train
        ln -sf $PWD/$file split/$part/$name/
    done
done
last=output/photos/last.pth.tar
classes=$(ls photos | wc -l)
python train.py --data-dir split --model vit_tiny_patch16_224 --img-size 64 --model-kwargs img_size=64 \
    --num-classes $classes --batch-size 32 --opt adamw --lr 1e-3 --weight-decay 0.05 --clip-grad 1 \
    --epochs 100 --warmup-epochs 10 --drop-path 0.1 --device cpu --workers 2 --output output \
    --experiment photos $([ -e $last ] && echo --resume $last)
python validate.py --data-dir photos_test --split . --model vit_tiny_patch16_224 --img-size 64 \
    --model-kwargs img_size=64 --num-classes $classes --device cpu --workers 2 \
    --checkpoint output/photos/model_best.pth.tar
python inference.py --data-dir new --model vit_tiny_patch16_224 --img-size 64 \
    --model-kwargs img_size=64 --num-classes $classes --device cpu --workers 2 \
    --checkpoint output/photos/model_best.pth.tar --topk 3 --results-format json
