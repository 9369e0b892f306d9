# Names and ids that a running agent knows.
_tacit() {
    local what= one found=
    case $words[CURRENT-1] in
    --rule) what=rules ;;
    --run) what=runs ;;
    connections) [[ $words[2] != show ]] || what=connections ;;
    policy) [[ $words[2] != show ]] || what=rules ;;
    *)
        case $words[2] in
        close) what=connections ;;
        trace) what="rules connections" ;;
        esac
        ;;
    esac
    (( CURRENT > 2 )) || what=
    for one in ${=what}; do
        compadd -- ${(f)"$(tacit names $one 2>/dev/null)"} && found=1
    done
    # Where there is a name, a file is not meant.
    [[ -n $found ]] || _tacit_static "$@"
}
